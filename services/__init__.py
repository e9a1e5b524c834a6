"""The services of Lehr, one package a service."""
