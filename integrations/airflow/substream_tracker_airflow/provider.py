"""The description that Airflow asks a provider for."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description: its name, and its connection type with the form's fields."""

    def file_field(label: str, description: str) -> dict[str, Any]:
        return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}

    return {
        "package-name": "substream-tracker-airflow",
        "name": "Substream tracker",
        "description": "Waits for the ends of substreams of streaming jobs.",
        "connection-types": [
            {
                "connection-type": "substream_tracker",
                "hook-class-name": "substream_tracker_airflow.hook.SubstreamTrackerHook",
                "hook-name": "Substream tracker",
                "conn-fields": {
                    "ca": file_field("Authorities", "file of the authorities of the tracker's certificate, or: system"),
                    "cert": file_field("Certificate", "file of the client's certificate"),
                    "key": file_field("Key", "file of the client's key"),
                    "token_file": file_field("Token file", "file that has the token, and nothing else"),
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "login", "password"],
                    "relabeling": {},
                    "placeholders": {"host": "tracker.example.org", "port": "7654"},
                },
            }
        ],
    }
