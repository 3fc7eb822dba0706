"""Behaviour, with tiny real models instead of mocks; the rooms mirror the packages."""
