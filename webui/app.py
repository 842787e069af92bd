"""What `streamlit run` is given: the navigation. Each page is a script of its own."""

import streamlit as st

st.set_page_config(page_title="Surgeproof", layout="wide")
st.navigation(
    [
        st.Page("pages/runs.py", title="Runs", default=True),
        st.Page("pages/one_run.py", title="One run", url_path="run"),
    ]
).run()
