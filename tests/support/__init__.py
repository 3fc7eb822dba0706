"""What several tests share: tiny models, fakes, hostile inputs, a browser."""
