"""``format("servicebus")``: queues and subscriptions into Spark, and back."""
