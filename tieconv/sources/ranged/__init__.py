"""Read files of a model by ranges, whichever server holds them."""
