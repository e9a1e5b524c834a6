"""Calls between services: identity, deadlines, errors and traces around grpc.aio."""
