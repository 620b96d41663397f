"""Keep one copy of each matrix: find copies by content, choose one by its uses, and rewrite the nodes."""
