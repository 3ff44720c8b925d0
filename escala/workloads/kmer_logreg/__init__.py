"""The workload `kmer-logreg`: logistic regression on counts of k-mers."""
