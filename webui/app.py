"""What `streamlit run` is given: the navigation. Each page is a script of its own.

They are not in a folder named `pages`: Streamlit would make pages of its own of that, before it runs this.
"""

import streamlit as st

st.set_page_config(page_title="Surgeproof", layout="wide")
st.navigation(
    [
        st.Page("views/runs.py", title="Runs", default=True),
        st.Page("views/one_run.py", title="One run", url_path="run"),
        st.Page("views/comparison.py", title="Compare", url_path="compare"),
    ]
).run()
