"""Programs of users: what they declare, where they run, and what they tell of their training."""
