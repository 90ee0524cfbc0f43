"""What a batch received and sent, by substream, and how the tracker learns of it: probes, folding, a query's run."""
