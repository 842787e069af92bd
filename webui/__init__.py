"""What is seen: Streamlit pages over stored runs."""
