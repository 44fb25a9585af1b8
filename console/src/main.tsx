import { render } from "preact";
import "./styles/tokens.css";
import "./styles/frame.css";
import "./styles/components.css";
import "./styles/stages.css";
import "./styles/data.css";
import { Console } from "./frame/frame";
import { followAddress } from "./lib/address";
import { listenForKeys } from "./lib/keys";
import { followSession } from "./lib/session";
import { followTheme } from "./lib/theme";
import { followTime } from "./lib/now";

const place = document.getElementById("console");
if (place) {
  listenForKeys();
  followSession();
  followAddress();
  followTheme();
  followTime();
  render(<Console />, place);
}
