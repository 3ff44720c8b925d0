"""The workload `caption-lstm`: captions of pictures, word by word."""
