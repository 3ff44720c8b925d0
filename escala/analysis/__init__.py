"""From runs to numbers: statistics, attribution, ladders, differences, leakage."""
