"""What the commands share: which namespace, values, messages, output, the JSON client."""
