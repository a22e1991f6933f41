"""Train an image classifier on every core of every worker, and write down what happened. See payload/README.md."""
