"""Arrays of a user's own, from `.npy` and `.npz` files."""
