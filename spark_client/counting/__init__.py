"""The rows that a batch received and sent, counted by substream, and a query's run, which reports them."""
