"""Programs of users: their declarations, environments, times and scores."""
