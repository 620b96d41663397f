"""Results as records that serialise to the JSON documents."""
