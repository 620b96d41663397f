"""Questions that several loaders ask of an inspection."""
