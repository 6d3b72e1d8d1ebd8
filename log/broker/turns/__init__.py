"""One thread for everybody: long work in slices, steps in their order, deadlines."""
