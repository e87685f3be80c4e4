"""Tests of the edge: real gRPC, real HTTP, and one real API server."""
