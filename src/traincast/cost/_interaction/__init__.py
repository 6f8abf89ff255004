"""What whole steps say above the sum of operators: a factor for each class of operators, and a graph network."""
