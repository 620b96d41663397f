"""Export an encoder-decoder as two graphs with caches of both attentions, and one data file."""
