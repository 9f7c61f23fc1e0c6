"""What a model is: the graph schema, read, checked, expanded and measured."""
