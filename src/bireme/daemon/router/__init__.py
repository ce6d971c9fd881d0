"""The router beside the daemon: started when there are services, told what to route, heard out, found again."""
