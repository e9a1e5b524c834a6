"""Token tables of datasets: made in processes of their own, kept in the object store by content."""
