"""Read JSON strictly, and edit JSON text without changing its other characters."""
