"""Every branch of every rule: a checkpoint that takes it, and exactly what the gate then says."""
