"""Do work on many models at once: in processes of this machine, or on a cluster."""
