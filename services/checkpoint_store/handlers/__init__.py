"""The use cases, one module a noun; each change is one transaction under the lock of the job."""
