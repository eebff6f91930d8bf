"""What is sampled: models, the clients' potentials and estimators of their gradients."""
