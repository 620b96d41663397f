"""Read a quantised embedding and head as logical matrices, and compare their values."""
