"""Measures engines that serve: drives them with a stream of requests and notes when each token came."""
