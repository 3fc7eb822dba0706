"""Which characters belong to scripts that are written without spaces."""

# Thai, Lao, Burmese, Khmer, kana and Han, as part of a set of characters in a regular expression
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3005-\u3007\u3021-\u9fff\uf900-\ufaff"
