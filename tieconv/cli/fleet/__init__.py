"""What the commands of `tieconv fleet` share."""
