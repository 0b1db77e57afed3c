"""The demo: the whole system on one machine for about a minute, and the proof that everything adds up.

`run` starts and stops the parts, `bill_client` keeps asking, `display` shows the progress, and `demo_report` has the
closing report and the HTML snapshot. The parts shared with chaos are in `stateside.testbed`.
"""
