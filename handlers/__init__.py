"""What is deployed: each module without an underscore is one Lambda function, `handler` its entry."""
