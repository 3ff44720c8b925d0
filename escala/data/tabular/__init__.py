"""Tables of numbers with a class: CSV files, and samples that come with scikit-learn."""
