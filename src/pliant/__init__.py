"""pliant: find out which components of a pretrained transformer bend, and train only those worth it."""
