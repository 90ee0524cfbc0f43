"""What a release is made of and checked with: distributions, an SBOM, one version everywhere. See docs/releasing.md."""
