"""Code shared by strategies: the place of a process, factored gradients, servers."""
