// The start: leads on to the first page that is for who looks.

import { begin, empty } from "./app.js";
import { put } from "./dom.js";

const session = await begin();
if (session.pages.length) location.replace(session.pages.find(({ address }) => address === "/bill")?.address ?? session.pages[0].address);
else put(document.getElementById("main"), empty("There is no page for this token", "It opens no view. Ask who runs this server."));
