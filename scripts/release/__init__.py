"""Build and check a release: distributions, an SBOM, one version everywhere. See docs/design/releasing.md."""
