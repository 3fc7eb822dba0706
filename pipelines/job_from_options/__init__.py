"""Jobs from settings: recover.yaml, then the files beside the documents, then the options that were typed."""
