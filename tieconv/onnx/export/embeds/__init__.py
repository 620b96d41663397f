"""Export a decoder that reads `inputs_embeds`, and a graph of its embedding: two graphs with one data file."""
