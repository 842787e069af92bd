"""The web UI: Streamlit pages for stored runs."""
