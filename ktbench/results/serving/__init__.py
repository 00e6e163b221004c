"""What replays of streams of requests say of the system that served them."""
