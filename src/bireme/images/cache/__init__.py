"""What is kept of images, for one user on this machine: layers as they came, and the folders they were unpacked to.

blobs/sha256/HEX          a layer, config or manifest, whole and verified      HEX.part  what has come so far
roots/KEY/                an image: `root`, `image.json`, `lock`               KEY.new   not whole yet
names/HEX.json            what a reference meant, and when that was asked
pulls/KEY                 who pulls it now, and how far that is
"""
