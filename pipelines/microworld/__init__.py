"""The microworld: a tiny world of people and documents, its generator and its shipped model."""
