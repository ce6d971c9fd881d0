"""What a service is: values of its own, around the jobs that its replicas are."""
